package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

const keyBytes = 32

var errStranger = errors.New("the peer does not hold the key of this run")

// ReadKey reads the key of the run: 32 random bytes that its pods alone have.
func readKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if err == nil && len(key) != keyBytes {
		err = fmt.Errorf("%s: %d bytes, where a key has %d", path, len(key), keyBytes)
	}
	return key, err
}

// Identity is how both sides of a connection prove that they hold the key: TLS 1.3, each with the one certificate that
// follows from the key. Tickets are off, so that each connection proves it anew and recorded bytes open none.
func identity(key []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, key, nil, "tessera-steps 1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	public := private.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	certificate, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // no authority is asked: VerifyConnection pins the one public key
		SessionTicketsDisabled: true,
		CurvePreferences:       []tls.CurveID{tls.X25519},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errStranger
			}
			theirs, ok := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			if !ok || !bytes.Equal(theirs, public) {
				return errStranger
			}
			return nil
		},
	}, nil
}
