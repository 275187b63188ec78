from shoal.papers.arda2026.model import PAPER
