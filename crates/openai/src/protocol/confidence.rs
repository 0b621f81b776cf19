//! When a sample ends because the model loses confidence: the field `confidence_stop`, and the two forms in which
//! clients of DeepConf ask a vLLM for it in `vllm_xargs`. And `return_confidence`, which shows the confidences.

use std::num::{NonZeroU16, NonZeroUsize};

use serde_json::{Map, Value};

use super::fields::BodyFields;
use super::refusal::Refusal;
use offshoot_backend::MOST_TOP;
use offshoot_engine::ConfidenceStop;

/// The likeliest tokens of which a confidence is where nothing is said: DeepConf's.
const USUAL_TOP: NonZeroU16 = NonZeroU16::new(20).expect("not 0");

/// What a request asks for of confidences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestedConfidence {
    /// Of how many of the likeliest tokens one is; `None`: there are none.
    pub top: Option<NonZeroU16>,
    /// Whether the answer shows them.
    pub is_shown: bool,
    /// When a sample ends by them.
    pub stop: Option<ConfidenceStop>,
}

impl RequestedConfidence {
    /// Takes `return_confidence`, `confidence_stop` and `vllm_xargs`.
    pub fn take(fields: &mut BodyFields) -> Result<Self, Refusal> {
        let shown = tokens(fields, "return_confidence")?;
        let stop = match (own_stop(fields)?, deepconf_stop(fields)?) {
            (Some(_), Some(_)) => return Err(Refusal::out_of_place("vllm_xargs", "beside `confidence_stop`")),
            (own, deepconf) => own.or(deepconf),
        };
        if let Some((shown, (_, top))) = shown.zip(stop).filter(|(shown, (_, top))| shown != top) {
            let expected = format!("{top}, of which the confidences are that end the samples");
            return Err(Refusal::value("return_confidence", &expected, &shown.to_string()));
        }
        let (stop, top) = stop.unzip();
        Ok(RequestedConfidence { top: shown.or(top), is_shown: shown.is_some(), stop })
    }
}

/// `confidence_stop`: {"window": tokens, "below": nats, "top": tokens}.
fn own_stop(fields: &mut BodyFields) -> Result<Option<(ConfidenceStop, NonZeroU16)>, Refusal> {
    let Some(mut inner) = inner_fields(fields, "confidence_stop")? else { return Ok(None) };
    let window = required(&mut inner, "confidence_stop.window", window)?;
    let below = required(&mut inner, "confidence_stop.below", BodyFields::finite)?;
    let top = tokens(&mut inner, "confidence_stop.top")?.unwrap_or(USUAL_TOP);
    inner.finish()?;
    Ok(Some((ConfidenceStop { window, below }, top)))
}

/// `vllm_xargs`: the names that deepconf's own processor reads, or those of the server that it describes. The text's
/// end is the model's, whatever `eos_token_id` says.
fn deepconf_stop(fields: &mut BodyFields) -> Result<Option<(ConfidenceStop, NonZeroU16)>, Refusal> {
    let Some(mut inner) = inner_fields(fields, "vllm_xargs")? else { return Ok(None) };
    inner.ignore(&["vllm_xargs.eos_token_id"]);
    let is_on = inner.choice("vllm_xargs.enable_conf")?;
    let processor = both(
        ("vllm_xargs.conf_threshold", inner.finite("vllm_xargs.conf_threshold")?),
        ("vllm_xargs.conf_group_size", window(&mut inner, "vllm_xargs.conf_group_size")?),
    )?;
    let (below, size) = (inner.finite("vllm_xargs.threshold")?, window(&mut inner, "vllm_xargs.window_size")?);
    let (is_any, server) = (below.is_some() || size.is_some(), below.zip(size));
    let top = tokens(&mut inner, "vllm_xargs.conf_topk")?.unwrap_or(USUAL_TOP);
    inner.finish()?;
    let stop = |(below, window)| (ConfidenceStop { window, below }, top);
    match (is_on, server) {
        (None, _) if is_any => {
            let expected = "true or false, beside `threshold` and `window_size`";
            Err(Refusal::value("vllm_xargs.enable_conf", expected, "nothing"))
        }
        (Some(true), None) => {
            let expected = "`threshold` and `window_size` beside it";
            Err(Refusal::value("vllm_xargs.enable_conf", expected, "not both"))
        }
        (Some(true), server) => Ok(server.map(stop)),
        _ => Ok(processor.map(stop)),
    }
}

/// Two fields of which neither says anything alone.
fn both<A, B>(a: (&str, Option<A>), b: (&str, Option<B>)) -> Result<Option<(A, B)>, Refusal> {
    let missing = |name, other| Refusal::value(name, &format!("a number, beside `{other}`"), "nothing");
    match (a, b) {
        ((_, Some(a)), (_, Some(b))) => Ok(Some((a, b))),
        ((_, None), (_, None)) => Ok(None),
        ((name, None), (other, Some(_))) | ((other, Some(_)), (name, None)) => Err(missing(name, other)),
    }
}

/// The fields of the object `key`, by their names in the whole body.
fn inner_fields(fields: &mut BodyFields, key: &str) -> Result<Option<BodyFields>, Refusal> {
    let object = fields.object(key)?;
    let named: Map<String, Value> = object.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)).collect();
    Ok((!named.is_empty()).then(|| BodyFields::new(&named)))
}

fn required<T>(
    fields: &mut BodyFields,
    key: &str,
    read: impl FnOnce(&mut BodyFields, &str) -> Result<Option<T>, Refusal>,
) -> Result<T, Refusal> {
    read(fields, key)?.ok_or_else(|| Refusal::value(key, "a number", "nothing"))
}

fn window(fields: &mut BodyFields, key: &str) -> Result<Option<NonZeroUsize>, Refusal> {
    Ok(fields.count(key, 1, u32::MAX.into())?.and_then(NonZeroUsize::new))
}

/// A number of the likeliest tokens.
fn tokens(fields: &mut BodyFields, key: &str) -> Result<Option<NonZeroU16>, Refusal> {
    let count = fields.count(key, 1, MOST_TOP as u64)?;
    Ok(count.and_then(|count| u16::try_from(count).ok()).and_then(NonZeroU16::new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<RequestedConfidence, Refusal> {
        let mut fields = BodyFields::new(body.as_object().expect("an object"));
        let read = RequestedConfidence::take(&mut fields)?;
        fields.finish().map(|()| read)
    }

    fn stop(window: usize, below: f64) -> Option<ConfidenceStop> {
        Some(ConfidenceStop { window: NonZeroUsize::new(window).expect("from 1 up"), below })
    }

    #[test]
    fn confidences_are_asked_for_in_three_ways() {
        assert_eq!(read(json!({})), Ok(RequestedConfidence::default()));
        assert_eq!(read(json!({"vllm_xargs": {}, "confidence_stop": {}})), Ok(RequestedConfidence::default()));
        let top = NonZeroU16::new;
        let shown = RequestedConfidence { top: top(7), is_shown: true, stop: None };
        assert_eq!(read(json!({"return_confidence": 7})), Ok(shown));
        let own = read(json!({"confidence_stop": {"window": 32, "below": 12.5, "top": 7}, "return_confidence": 7}));
        assert_eq!(own, Ok(RequestedConfidence { stop: stop(32, 12.5), ..shown }));
        let ends =
            |window, below, k| Ok(RequestedConfidence { top: top(k), is_shown: false, stop: stop(window, below) });
        assert_eq!(read(json!({"confidence_stop": {"window": 1, "below": 0}})), ends(1, 0.0, 20));
        let processor = json!({"conf_threshold": 17.25, "eos_token_id": 2, "conf_group_size": 2048, "conf_topk": 5});
        assert_eq!(read(json!({"vllm_xargs": processor})), ends(2048, 17.25, 5));
        let server = json!({"enable_conf": true, "window_size": 2048, "threshold": 17});
        assert_eq!(read(json!({"vllm_xargs": server})), ends(2048, 17.0, 20));
        let off = json!({"enable_conf": false, "window_size": 2048, "threshold": 17});
        assert_eq!(read(json!({"vllm_xargs": off})), Ok(RequestedConfidence::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, field) in [
            (json!({"return_confidence": 0}), "return_confidence"),
            (json!({"return_confidence": 5000}), "return_confidence"),
            (json!({"return_confidence": true}), "return_confidence"),
            (json!({"return_confidence": 5, "confidence_stop": {"window": 2, "below": 1}}), "return_confidence"),
            (json!({"confidence_stop": {"window": 2}}), "confidence_stop.below"),
            (json!({"confidence_stop": {"below": 2}}), "confidence_stop.window"),
            (json!({"confidence_stop": {"window": 0, "below": 2}}), "confidence_stop.window"),
            (json!({"confidence_stop": {"window": 2, "below": "much"}}), "confidence_stop.below"),
            (json!({"confidence_stop": {"window": 2, "below": 1, "keep": 1}}), "confidence_stop.keep"),
            (json!({"confidence_stop": 3}), "confidence_stop"),
            (json!({"vllm_xargs": {"a": 1}}), "vllm_xargs.a"),
            (json!({"vllm_xargs": {"enable_conf": true, "threshold": 17}}), "vllm_xargs.enable_conf"),
            (json!({"vllm_xargs": {"threshold": 17, "window_size": 2048}}), "vllm_xargs.enable_conf"),
            (json!({"vllm_xargs": {"threshold": 17}}), "vllm_xargs.enable_conf"),
            (json!({"vllm_xargs": {"conf_threshold": 17}}), "vllm_xargs.conf_group_size"),
            (json!({"vllm_xargs": {"conf_group_size": 2048}}), "vllm_xargs.conf_threshold"),
            (
                json!({"confidence_stop": {"window": 2, "below": 1},
                    "vllm_xargs": {"conf_threshold": 1, "conf_group_size": 2}}),
                "vllm_xargs",
            ),
        ] {
            assert_eq!(read(body.clone()).expect_err("it is wrong").param.as_deref(), Some(field), "{body}");
        }
    }
}
