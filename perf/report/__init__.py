"""All results of a folder as one page: knows the form of a result, and no command."""
