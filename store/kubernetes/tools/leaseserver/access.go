package main

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// A client's bearer token says what it may do: "all", or "may", dots and verbs, as in may.get.create.update, which are
// allowed for leases in the namespace default. Other tokens are not known.
const (
	allowAll    = "all"
	verbsPrefix = "may."
	namespace   = "default"
)

type tokenAuthenticator struct{}

func (tokenAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token != allowAll && !strings.HasPrefix(token, verbsPrefix) {
		return nil, false, nil
	}
	u := &user.DefaultInfo{Name: "tester", Groups: []string{user.AllAuthenticated}}
	if token == allowAll {
		u.Groups = append(u.Groups, user.SystemPrivilegedGroup)
	} else {
		u.Extra = map[string][]string{"verbs": strings.Split(token, ".")[1:]}
	}
	return &authenticator.Response{User: u}, true, nil
}

// authorize lets a client do what its token says.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	switch {
	case u == nil:
	case slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup):
		return authorizer.DecisionAllow, "", nil
	case a.GetResource() == "leases" && a.GetNamespace() == namespace && slices.Contains(u.GetExtra()["verbs"], a.GetVerb()):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "", nil
}
