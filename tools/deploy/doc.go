// Package deploy has the tests of what is installed on other systems: the Helm chart, the manifests made of it, and the files of Docker
// Compose. It is a module of its own, so that Helm and Kubernetes stay out of Stint's.
package deploy
