// Command leaseserver is a server for the tests of a store on Kubernetes: the generic server of Kubernetes' own
// k8s.io/apiserver with one resource, Lease of coordination.k8s.io/v1, over an etcd. Requests, conditions, storage, the
// watch cache and the validation of objects' names and metadata are the real ones; the few rules for a Lease itself,
// who a client is and what it may do are in this program. With the argument etcd it is an etcd server.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	basecompatibility "k8s.io/component-base/compatibility"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

var (
	scheme         = runtime.NewScheme()
	codecs         = serializer.NewCodecFactory(scheme)
	parameterCodec = runtime.NewParameterCodec(scheme)
)

func init() {
	// One Go type serves as both the version on the wire and the server's internal one.
	internal := schema.GroupVersion{Group: coordinationv1.GroupName, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
	utilruntime.Must(scheme.SetVersionPriority(coordinationv1.SchemeGroupVersion))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{}, &metav1.APIVersions{},
		&metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "etcd" {
		etcdmain.Main(os.Args[1:])
		return
	}
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: leaseserver ETCD PORT DIRECTORY\n       leaseserver etcd FLAG...")
		os.Exit(64)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "leaseserver:", err)
		os.Exit(1)
	}
}

// run serves until it gets a signal. Its certificate is in the directory, and stays there.
func run(etcd, port, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	c := genericapiserver.NewRecommendedConfig(codecs)
	c.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.37", "", "")

	serving := options.NewSecureServingOptions().WithLoopback()
	serving.BindAddress = net.IPv4(127, 0, 0, 1)
	c.SkipOpenAPIInstallation = true
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, openapi.NewDefinitionNamer(scheme))
	var err error
	if serving.BindPort, err = strconv.Atoi(port); err != nil {
		return err
	}
	serving.ServerCert.CertDirectory, serving.ServerCert.PairName = dir, "server"
	if err := serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{serving.BindAddress}); err != nil {
		return err
	}
	if err := serving.ApplyTo(&c.SecureServing, &c.LoopbackClientConfig); err != nil {
		return err
	}
	c.Authentication.Authenticator = tokenAuthenticator{}
	c.Authorization.Authorizer = authorizer.AuthorizerFunc(authorize)

	storage := options.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry",
		codecs.LegacyCodec(coordinationv1.SchemeGroupVersion)))
	storage.StorageConfig.Transport.ServerList = []string{etcd}
	if err := storage.ApplyTo(&c.Config); err != nil {
		return err
	}
	server, err := c.Complete().New("leaseserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	leases, err := newLeases(c.RESTOptionsGetter)
	if err != nil {
		return err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(coordinationv1.GroupName, scheme, parameterCodec, codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"leases": leases}
	if err := server.InstallAPIGroup(&group); err != nil {
		return err
	}
	return server.PrepareRun().RunWithContext(ctx)
}
