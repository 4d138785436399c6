"""One module for each command. `perdure.cli.root` imports a module when its command is called."""
