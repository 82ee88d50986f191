// Package cluster reaches the nodes: addresses, certificate and token come from the environment.
package cluster

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Namespace is the tenant of all jobs, schedules and workers.
var Namespace = cmp.Or(os.Getenv("SHARDWHEEL_NAMESPACE"), "default")

// Addresses are those of one or more nodes.
var Addresses = strings.Split(cmp.Or(os.Getenv("SHARDWHEEL_ADDRESS"), "localhost:7400"), ",")

// Dial returns a connection to a node, which is made with its first call.
func Dial(address string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if file := os.Getenv("SHARDWHEEL_CA"); file != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(file, ""); err != nil {
			return nil, err
		}
	}
	return grpc.NewClient(strings.TrimSpace(address), grpc.WithTransportCredentials(transport))
}

// WithToken adds the token to the calls that are made with the context.
func WithToken(ctx context.Context) context.Context {
	if token := os.Getenv("SHARDWHEEL_TOKEN"); token != "" {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return ctx
}

// Client calls the nodes one after another until one answers.
type Client struct {
	connections []*grpc.ClientConn
	current     int
}

// NewClient returns a client of all addresses.
func NewClient() (*Client, error) {
	client := &Client{}
	for _, address := range Addresses {
		connection, err := Dial(address)
		if err != nil {
			return nil, err
		}
		client.connections = append(client.connections, connection)
	}
	return client, nil
}

// Call makes a call that may be repeated, each try with the timeout.
func (c *Client) Call(
	ctx context.Context, timeout time.Duration, call func(context.Context, *grpc.ClientConn) error,
) error {
	for failures := 1; ; failures++ {
		try, cancel := context.WithTimeout(WithToken(ctx), timeout)
		err := call(try, c.connections[c.current%len(c.connections)])
		cancel()
		code := status.Code(err)
		if err == nil || failures >= 60 || (code != codes.Unavailable && code != codes.DeadlineExceeded) {
			return err
		}
		c.current++
		time.Sleep(200*time.Millisecond + rand.N(300*time.Millisecond))
	}
}
