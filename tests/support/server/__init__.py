"""A running Gapless, requests to it, good and bad, and what has to hold around them."""
