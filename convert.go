package holdfast

import (
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

// This file is the border between the types that stores use (package driver) and the types that users see.

// infoFromDriver converts what a driver says of its store into the public type.
func infoFromDriver(i driver.Info) Info {
	return Info{
		Store: i.Store, Engine: i.Engine, Clock: i.Clock,
		Tier: Tier(i.Tier), ExpiredBy: ExpiredBy(i.ExpiredBy), ExpiryClock: ExpiryClock(i.ExpiryClock), Order: Order(i.Order),
		Kinds: i.Kinds, Detached: i.Abilities.Detach, Permits: i.Abilities.Permits, Survives: Survives(i.Survives),
		NativeQueue: i.NativeQueue, DeadHolderTimeout: i.DeadHolderTimeout, WriteInterval: i.WriteInterval,
		TokenGap: i.TokenGap, TokenRegression: i.TokenRegression,
		MinTTL: i.MinTTL, MaxTTL: i.MaxTTL, MaxName: i.MaxName, MaxMeta: i.MaxMeta, MaxRunResult: i.MaxRunResult,
		MaxHolders: i.MaxHolders, MaxWaiters: i.MaxWaiters,
	}
}

// lockFromDriver converts a lock that a driver has read.
func lockFromDriver(l driver.Lock) Lock {
	return Lock{
		Name: l.Name, Kind: l.Kind, Limit: l.Limit, Token: l.Token, Revision: l.Revision,
		Holders: claimsFromDriver(l.Holders), Waiters: claimsFromDriver(l.Waiters),
	}
}

// claimsFromDriver converts holders or waiters. No list stays no list.
func claimsFromDriver(claims []driver.ClaimInfo) []ClaimInfo {
	if claims == nil {
		return nil
	}
	converted := make([]ClaimInfo, len(claims))
	for i, c := range claims {
		converted[i] = ClaimInfo(c)
	}
	return converted
}

// findHeldError finds who holds the lock in an error of the store or of this package; nil if it does not say.
func findHeldError(err error) *HeldError {
	var held *HeldError
	var stored *driver.HeldError
	switch {
	case errors.As(err, &held):
		return held
	case errors.As(err, &stored):
		return &HeldError{Holders: claimsFromDriver(stored.Holders), Waiting: stored.Waiting}
	}
	return nil
}

// findLossError finds the cause of a loss in an error of the store or of this package; nil if it does not say.
func findLossError(err error) *LossError {
	var loss *LossError
	var stored *driver.LossError
	switch {
	case errors.As(err, &loss):
		return loss
	case errors.As(err, &stored):
		return &LossError{Cause: LossCause(stored.Cause), Err: stored.Err, StaysHeld: stored.StaysHeld}
	}
	return nil
}

// lossOf is the cause of a loss that the store has reported with an error for which errors.Is(err, ErrLost) is true.
func lossOf(err error) *LossError {
	if loss := findLossError(err); loss != nil {
		return loss
	}
	return &LossError{Cause: LossExpired, Err: err}
}
