import click

command = click.Group("migrate", help="Example holdfast migrate")
