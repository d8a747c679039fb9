"""Pictures as columns of the state: the cameras of a dataset, a frozen encoder, its embeddings and their cache."""
