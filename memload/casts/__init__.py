"""From stored elements to the numbers a network takes."""
