"""Declaring tasks: decorators, options, arguments, middleware and provided values."""
