package main

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// newLeases makes the storage of Lease objects.
func newLeases(options generic.RESTOptionsGetter) (*registry.Store, error) {
	resource := coordinationv1.Resource("leases")
	s := &registry.Store{
		NewFunc:                   func() runtime.Object { return &coordinationv1.Lease{} },
		NewListFunc:               func() runtime.Object { return &coordinationv1.LeaseList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: coordinationv1.Resource("lease"),
		CreateStrategy:            strategy{scheme, names.SimpleNameGenerator},
		UpdateStrategy:            strategy{scheme, names.SimpleNameGenerator},
		DeleteStrategy:            strategy{scheme, names.SimpleNameGenerator},
		TableConvertor:            rest.NewDefaultTableConvertor(resource),
	}
	return s, s.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options})
}

// strategy has the rules for a Lease, which are those of Kubernetes: a PUT may make one, and a change must name the
// version that it replaces.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                                { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool                             { return true }
func (strategy) AllowUnconditionalUpdate(context.Context) bool                        { return false }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                     {}
func (strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object)        {}
func (strategy) Canonicalize(runtime.Object)                                          {}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string            { return nil }
func (strategy) WarningsOnUpdate(ctx context.Context, o, old runtime.Object) []string { return nil }

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	l := obj.(*coordinationv1.Lease)
	errs := validation.ValidateObjectMeta(&l.ObjectMeta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateSpec(&l.Spec)...)
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	l, before := obj.(*coordinationv1.Lease), old.(*coordinationv1.Lease)
	errs := validation.ValidateObjectMetaUpdate(&l.ObjectMeta, &before.ObjectMeta, field.NewPath("metadata"))
	return append(errs, validateSpec(&l.Spec)...)
}

// validateSpec checks the two numbers of a Lease. Nothing here takes part in coordinated leader election.
func validateSpec(s *coordinationv1.LeaseSpec) (errs field.ErrorList) {
	at := field.NewPath("spec")
	if d := s.LeaseDurationSeconds; d != nil && *d < 1 {
		errs = append(errs, field.Invalid(at.Child("leaseDurationSeconds"), *d, "is not positive"))
	}
	if n := s.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(at.Child("leaseTransitions"), *n, "is negative"))
	}
	if s.Strategy != nil || s.PreferredHolder != nil {
		errs = append(errs, field.Forbidden(at, "coordinated leader election is not supported by this server"))
	}
	return errs
}
