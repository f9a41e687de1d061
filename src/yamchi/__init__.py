"""Yamchi: the background half of a product, on the queue you already have."""
