"""What `perdure worker` is given: the flows of the store and folder that the environment names."""

from .flows import from_environment

app = from_environment().app
