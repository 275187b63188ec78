"""How claims are decided: bets on shares, confidence sequences, many claims at once, spending."""
