"""Files that clients upload: training data, and requests of batches; and what batches have answered."""
