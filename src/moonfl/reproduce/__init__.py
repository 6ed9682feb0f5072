"""The experiments of the MOON paper: targets, runner, tables, figures and time estimates."""
