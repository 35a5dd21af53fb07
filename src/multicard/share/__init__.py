"""Results for others: archives without names of people and machines, and the formats of other tools."""
