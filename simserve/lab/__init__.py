"""The laboratory: fits of kernels, hosts, cards and logs of servers, their errors, and the timing of a card."""
