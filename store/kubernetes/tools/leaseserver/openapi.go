package main

import (
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// definitions describes a Lease, as far as the server must know it to keep the managers of its fields.
func definitions(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	property := func(kind, format string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{kind}, Format: format}}
	}
	anything := property("object", "")
	anything.Extensions = spec.Extensions{"x-kubernetes-preserve-unknown-fields": true}
	details := property("object", "")
	details.Properties = map[string]spec.Schema{
		"holderIdentity":       property("string", ""),
		"leaseDurationSeconds": property("integer", "int32"),
		"acquireTime":          property("string", "date-time"),
		"renewTime":            property("string", "date-time"),
		"leaseTransitions":     property("integer", "int32"),
		"strategy":             property("string", ""),
		"preferredHolder":      property("string", ""),
	}
	lease := property("object", "")
	lease.Properties = map[string]spec.Schema{"apiVersion": property("string", ""), "kind": property("string", ""),
		"metadata": anything, "spec": details}
	return map[string]common.OpenAPIDefinition{coordinationv1.Lease{}.OpenAPIModelName(): {Schema: lease}}
}
