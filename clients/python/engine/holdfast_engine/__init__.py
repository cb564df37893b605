"""The holdfast command is in the directory bin of this package. The package holdfast finds it there."""
