class Wrong(Exception):
    """A measurement whose work was not done as promised has no figures."""
