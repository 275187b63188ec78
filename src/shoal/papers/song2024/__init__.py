from shoal.papers.song2024.model import PAPER, Song
from shoal.papers.song2024 import theorems
