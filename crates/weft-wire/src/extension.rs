//! `weft.dev.v1.Extension` and [`Extension`].

use crate::{
    common::{Invalid, meta_from_api, meta_to_api},
    mesh as api,
};
use weft_model::{
    extension::{Extension, Place},
    http::{Filter, Mirror, PathChange, Rewrite},
};

/// `None` for a filter that the stock protocol carries.
pub fn to_api(extension: &Extension) -> Option<api::Extension> {
    let place = &extension.place;
    let number = |n: usize| u32::try_from(n).ok();
    let (rewrite_url, mirror) = match &extension.filter {
        Filter::RewriteUrl(rewrite) => {
            let (full_path, prefix) = match rewrite.path.clone() {
                None => (None, None),
                Some(PathChange::Full(path)) => (Some(path), None),
                Some(PathChange::Prefix(path)) => (None, Some(path)),
            };
            (Some(api::RewriteUrl { host: rewrite.host.clone(), full_path, prefix }), None)
        }
        Filter::Mirror(mirror) => {
            let backend = Some(meta_to_api(&mirror.meta));
            let (path, fraction) = (mirror.path.clone(), mirror.fraction);
            (None, Some(api::Mirror { backend, path, fraction }))
        }
        Filter::RequestHeaders(_)
        | Filter::ResponseHeaders(_)
        | Filter::Redirect(_)
        | Filter::Fail { .. }
        | Filter::Unknown => return None,
    };
    Some(api::Extension {
        route: Some(meta_to_api(&place.route)),
        rule: number(place.rule)?,
        backend: place.backend.map_or(Some(0), |at| number(at + 1))?,
        filter: number(place.filter)?,
        rewrite_url,
        mirror,
    })
}

/// A filter of a kind that this build does not know stays [`Filter::Unknown`].
pub fn from_api(extension: api::Extension) -> Result<Extension, Invalid> {
    let filter = match (extension.rewrite_url, extension.mirror) {
        (Some(rewrite), None) => Filter::RewriteUrl(Rewrite {
            host: rewrite.host.filter(|host| !host.is_empty()),
            path: rewrite.full_path.map(PathChange::Full).or(rewrite.prefix.map(PathChange::Prefix)),
        }),
        (None, Some(mirror)) => {
            if mirror.path.parse::<http::uri::Authority>().is_err() || !(0.0..=1.0).contains(&mirror.fraction)
            {
                return Err(Invalid::new("extension.mirror", format!("{mirror:?}")));
            }
            let meta = meta_from_api(mirror.backend, "extension.mirror.backend")?;
            Filter::Mirror(Mirror { meta, path: mirror.path, fraction: mirror.fraction })
        }
        _ => Filter::Unknown,
    };
    let place = Place {
        route: meta_from_api(extension.route, "extension.route")?,
        rule: extension.rule as usize,
        backend: extension.backend.checked_sub(1).map(|at| at as usize),
        filter: extension.filter as usize,
    };
    Ok(Extension { place, filter })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weft_model::meta::Meta;

    #[test]
    fn extensions_survive() {
        let meta = Arc::new(Meta::default_named("m"));
        let rewrite = |path| Filter::RewriteUrl(Rewrite { host: Some("h".into()), path });
        let mirror = Mirror { meta: meta.clone(), path: "m.svc:80".into(), fraction: 0.25 };
        for (filter, backend) in [
            (rewrite(Some(PathChange::Full("/x".into()))), None),
            (rewrite(Some(PathChange::Prefix("/y".into()))), Some(0)),
            (rewrite(None), Some(3)),
            (Filter::Mirror(mirror), None),
        ] {
            let place = Place { route: meta.clone(), rule: 2, backend, filter: 1 };
            let extension = Extension { place, filter };
            assert_eq!(from_api(to_api(&extension).unwrap()).unwrap(), extension);
        }
    }
}
