"""Moving house: everything that one store holds, carried to another (`perdure promote`)."""
