"""What a dataset looks like: for people who have it, and for those who consider it.

`overview` has the numbers that everything here draws. `figure` (extra ``plot``) draws the charts, `frames` makes sheets and
animations. `html_card` is a page that needs no other file, `metadata` a README for the Hugging Face Hub and Croissant for
catalogues. `facts` are the lines of cards that leave this machine, `target` checks the files to be written.
"""
