"""What another package can add to demosift: see pyproject.toml for the names."""
