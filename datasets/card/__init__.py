"""Pictures and cards that show what is in a dataset.

`overview` computes the numbers and facts that all of them show. `figure` (extra ``plot``) draws the charts, `frames` makes
sheets, `writers` the cards (HTML, README, Croissant). `files` checks and writes the files.
"""
