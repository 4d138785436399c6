"""What `perdure worker` is given: the program of the store and folder that the environment names."""

import os
from pathlib import Path

from .program import Program
from .workers import FOLDER, URL

app = Program(os.environ[URL], Path(os.environ[FOLDER])).app
