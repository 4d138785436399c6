"""Every role that a child of the nursery can play."""

from . import program, script

ROLES = {**program.ROLES, **script.ROLES}
