package envoystats

// Sampled returns the sample rate of a line that stands for n.
var Sampled = sampled
