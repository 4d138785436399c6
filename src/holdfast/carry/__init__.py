"""Moving house: everything that one store holds, carried to another (`holdfast promote`)."""
