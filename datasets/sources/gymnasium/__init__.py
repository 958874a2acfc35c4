"""Gymnasium: datasets recorded on this machine from any registered environment, with no network.

Read in this order: `environments` (which there are, and making them), `policy` (who acts), `recorder` (steps to rows),
`recording` (rows on disk while recording), `source` (the dataset).
"""
