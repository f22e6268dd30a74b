// Package export_weir_policy_calls is a policy about calls: nothing is deleted.
package export_weir_policy_calls

import (
	"runtime/debug"

	wit "go.bytecodealliance.org/pkg/wit/types"
	"wit_component/weir_policy_calls"
	"wit_component/weir_policy_types"
)

// Each question has an instance of its own, so its memory need not be collected. A collection could also begin where the
// contract allows no call but for memory.
func init() {
	debug.SetGCPercent(-1)
}

// Wants says what it wants to see. What it does not want to see never crosses to it.
func Wants(settings string) wit.Result[weir_policy_calls.Interest, string] {
	return wit.Ok[weir_policy_calls.Interest, string](weir_policy_calls.Interest{
		Methods: []string{"tools/call"},
		Names:   []string{"delete_*"},
		Request: weir_policy_calls.Detail_Facts,
	})
}

// Before says what becomes of a request. The decision is kept for a minute for calls with the same facts.
func Before(about weir_policy_calls.Call, params wit.Option[string]) weir_policy_calls.Decision {
	text := about.Name.SomeOr("this") + " is not allowed here: nothing is deleted; archive it instead"
	return weir_policy_calls.Decision{
		Verdict:    weir_policy_calls.MakeVerdictDeny(weir_policy_calls.Denial{Text: text}),
		TtlSeconds: 60,
	}
}

// After says what becomes of what comes back.
func After(about weir_policy_calls.Call, memory string, what weir_policy_calls.Content) weir_policy_calls.AnswerDecision {
	return weir_policy_calls.AnswerDecision{Verdict: weir_policy_calls.MakeAnswerVerdictPass(), Memory: memory}
}

// Entries says what becomes of entries of lists.
func Entries(of weir_policy_types.Upstream, entries []weir_policy_calls.Entry) []weir_policy_calls.EntryVerdict {
	verdicts := make([]weir_policy_calls.EntryVerdict, len(entries))
	for at := range entries {
		verdicts[at] = weir_policy_calls.MakeEntryVerdictShow()
	}
	return verdicts
}
