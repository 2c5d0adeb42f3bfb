"""Tools of the repository. They are no part of the wheel."""
