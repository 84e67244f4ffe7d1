//go:build tools

package tools

import _ "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
