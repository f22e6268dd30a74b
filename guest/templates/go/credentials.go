// Package export_weir_policy_credentials is a policy about credentials: the secret `token` goes into `Authorization`.
package export_weir_policy_credentials

import (
	"fmt"
	"runtime/debug"
	"slices"

	wit "go.bytecodealliance.org/pkg/wit/types"
	"wit_component/weir_policy_credentials"
)

// Each question has an instance of its own, so its memory need not be collected. A collection could also begin where the
// contract allows no call but for memory.
func init() {
	debug.SetGCPercent(-1)
}

// Decide says what opens the upstream.
func Decide(about weir_policy_credentials.Question) weir_policy_credentials.Decision {
	name := about.Upstream.Name
	if about.Refusal.IsSome() {
		why := fmt.Sprintf("%s answers %d to its token; set another one", name, about.Refusal.Some().Status)
		return weir_policy_credentials.MakeDecisionStop(why)
	}
	if !slices.Contains(about.Secrets, "token") {
		why := name + " has no secret `token`; add it to the `secrets` of its policy"
		return weir_policy_credentials.MakeDecisionStop(why)
	}
	return weir_policy_credentials.MakeDecisionAttach(weir_policy_credentials.Attachment{
		Header:     "authorization",
		Scheme:     wit.Some("Bearer"),
		Secret:     "token",
		TtlSeconds: 300,
	})
}
