"""What people start: `python -m commands.<name>`. Everything else may not import from here."""
