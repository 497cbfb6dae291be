package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
)

// readFiles reads the URL's certificate files into c.tls.
func (c *config) readFiles() error {
	if c.caFile != "" {
		_, pool, err := readCertificates("tls_ca", c.caFile)
		if err != nil {
			return err
		}
		c.tls.RootCAs = pool
	}
	if c.anyName {
		c.verifyAuthority()
	}
	if c.certFile == "" {
		return nil
	}
	cert, _, err := readCertificates("tls_cert", c.certFile)
	if err != nil {
		return err
	}
	key, err := readFile("tls_key", c.keyFile)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return badURL("tls_key", c.keyFile, "the private key of tls_cert, in PEM: "+err.Error())
	}
	c.tls.Certificates = []tls.Certificate{pair}
	return nil
}

// verifyAuthority makes connections verify the certificates of servers, and not their names.
func (c *config) verifyAuthority() {
	roots := c.tls.RootCAs
	c.tls.InsecureSkipVerify = true // VerifyConnection does the rest
	c.tls.VerifyConnection = func(s tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(o)
		return err
	}
}

func readCertificates(name, path string) ([]byte, *x509.CertPool, error) {
	text, err := readFile(name, path)
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, nil, badURL(name, path, "a PEM file with a certificate")
	}
	return text, pool, nil
}

func readFile(name, path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			err = p.Err // the path is in the error already
		}
		return nil, badURL(name, path, "a readable file: "+err.Error())
	}
	return text, nil
}
