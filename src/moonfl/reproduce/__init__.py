"""The experiments of the MOON paper: targets, tables, figures, estimated times."""
