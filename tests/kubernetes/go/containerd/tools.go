//go:build tools

package tools

import _ "github.com/containerd/containerd/cmd/containerd"
