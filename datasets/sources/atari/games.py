"""The 60 games of the DQN Replay dataset, 5 runs each, as the bucket spells them.

Source: https://research.google/resources/datasets/dqn-replay/ and google-research/batch_rl. (Adventure and Defender,
which d4rl-atari registers too, are not in the dataset.)
"""

from __future__ import annotations

RUNS = (1, 2, 3, 4, 5)

GAMES: tuple[str, ...] = (
    *("AirRaid", "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "BankHeist", "BattleZone"),
    *("BeamRider", "Berzerk", "Bowling", "Boxing", "Breakout", "Carnival", "Centipede", "ChopperCommand"),
    *("CrazyClimber", "DemonAttack", "DoubleDunk", "ElevatorAction", "Enduro", "FishingDerby", "Freeway"),
    *("Frostbite", "Gopher", "Gravitar", "Hero", "IceHockey", "Jamesbond", "JourneyEscape", "Kangaroo", "Krull"),
    *("KungFuMaster", "MontezumaRevenge", "MsPacman", "NameThisGame", "Phoenix", "Pitfall", "Pong", "Pooyan"),
    *("PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank", "Seaquest", "Skiing", "Solaris"),
    *("SpaceInvaders", "StarGunner", "Tennis", "TimePilot", "Tutankham", "UpNDown", "Venture", "VideoPinball"),
    *("WizardOfWor", "YarsRevenge", "Zaxxon"),
)
