"""What a dataset looks like: its overview, pictures of it, and cards for people and catalogues.

overview       distributions of returns, lengths, rewards and actions: what every picture and card is made of
figure         one matplotlib figure (extra ``plot``)
frame_sheet    frames on a sheet; `animation`: an episode that moves
html_card      a page in itself; `croissant` and `hub_card` describe the dataset to catalogues
"""
