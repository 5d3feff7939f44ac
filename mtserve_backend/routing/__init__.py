"""Which of several models keeps a user: the placement rule, and the knobs of the model `hstu_router`. No torch."""
