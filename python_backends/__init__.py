"""Gapless: the Python side of the house. Imports go downward only; `docs/design.md` draws the floors."""
