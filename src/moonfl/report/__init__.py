"""From facts to tables and figures. Nothing here trains."""
