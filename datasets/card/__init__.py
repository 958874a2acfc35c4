"""What a dataset looks like: for people who have it, and for those who consider it.

`overview` has the numbers and facts that everything here shows. `figure` (extra ``plot``) draws the charts, `frames` makes
sheets and animations, `writers` the cards (HTML, README, Croissant). `target` checks the files to be written.
"""
