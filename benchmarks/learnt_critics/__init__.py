"""How good a learnt critic has to be, on the synthetic task: critics that learn, and policies that learn from them."""
