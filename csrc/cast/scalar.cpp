namespace memload {}
